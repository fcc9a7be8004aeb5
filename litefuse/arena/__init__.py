"""Static memory plans: lifetimes, aliasing, order, packing, and the checker that trusts none of them."""
