"""Recurrent operators. Their state is in variable tensors, which must fit the batch."""

from __future__ import annotations

from litefuse.graph.infer.site import Shape, Shapes, Site, agree, declared, product, rule, show
from litefuse.schema.enums import LSTMKernelType
from litefuse.schema.operators import Op

# Places among the inputs of the LSTM kernels (tflite/kernels/lstm_shared.h and the like).
_RECURRENT_TO_OUTPUT = 8
_BACKWARD_RECURRENT_TO_OUTPUT = 25
_CELLS = 4  # the input-to-output weights have a row for each cell
_BACKWARD_CELLS = 21
_OUTPUT_STATE = 18
_BIDIRECTIONAL_STATE = 35  # forward output, forward cell, backward output, backward cell


@rule(Op.LSTM, type=declared)
def _lstm(site: Site) -> Shapes:
    if site.option("kernel_type") == LSTMKernelType.BASIC:
        batch, inputs = site.ranked(0, 2)
        _, depth = site.ranked(1, 2)
        _check_state(site, 1, batch, depth)
        _check_state(site, 4, batch, depth)
        joined = -1 if inputs < 0 or depth < 0 else inputs + depth
        return [(batch, depth), (batch, depth), (batch, joined), (batch, product((4, depth)))]
    batch, outputs = site.shape(0)[0], site.ranked(_RECURRENT_TO_OUTPUT, 2)[1]
    _check_lstm_state(site, _OUTPUT_STATE, batch, outputs, _CELLS)
    return (batch, outputs)


@rule(Op.UNIDIRECTIONAL_SEQUENCE_LSTM, type=declared)
def _sequence_lstm(site: Site) -> Shape:
    shape = site.ranked(0, 3)
    # Weights of one dimension are the diagonal of a square matrix.
    outputs = site.shape(_RECURRENT_TO_OUTPUT)[-1]
    _check_lstm_state(site, _OUTPUT_STATE, _batch(site), outputs, _CELLS)
    return (*shape[:-1], outputs)


@rule(Op.BIDIRECTIONAL_SEQUENCE_LSTM, type=declared)
def _bidirectional_lstm(site: Site) -> Shapes:
    forward = site.ranked(_RECURRENT_TO_OUTPUT, 2)[1]
    backward = site.ranked(_BACKWARD_RECURRENT_TO_OUTPUT, 2)[1]
    _check_lstm_state(site, _BIDIRECTIONAL_STATE, _batch(site), forward, _CELLS)
    _check_lstm_state(site, _BIDIRECTIONAL_STATE + 2, _batch(site), backward, _BACKWARD_CELLS)
    return _both(site, forward, backward)


@rule(Op.RNN, type=declared)
def _rnn(site: Site) -> Shape:
    batch, units = site.ranked(0, 2)[0], site.ranked(1, 2)[0]
    _check_state(site, 4, batch, units)
    return (batch, units)


@rule(Op.UNIDIRECTIONAL_SEQUENCE_RNN, type=declared)
def _sequence_rnn(site: Site) -> Shape:
    units = site.ranked(1, 2)[0]
    _check_state(site, 4, _batch(site), units)
    return (*site.ranked(0, 3)[:2], units)


@rule(Op.BIDIRECTIONAL_SEQUENCE_RNN, type=declared)
def _bidirectional_rnn(site: Site) -> Shapes:
    forward, backward = site.ranked(1, 2)[0], site.ranked(5, 2)[0]
    _check_state(site, 4, _batch(site), forward)
    _check_state(site, 8, _batch(site), backward)
    return _both(site, forward, backward)


@rule(Op.SVDF, type=declared)
def _svdf(site: Site) -> Shape:
    batch, filters, rank = site.ranked(0, 2)[0], site.ranked(1, 2)[0], site.option("rank")
    site.require(rank > 0 and filters % rank == 0, f"{filters} filters are not a multiple of the rank {rank}")
    _check_state(site, 4, batch, product((filters, site.ranked(2, 2)[1])))
    return (batch, filters // rank)


def _both(site: Site, forward: int, backward: int) -> Shapes:
    """Output shapes of the two directions, side by side in one tensor when they are merged."""
    steps = site.ranked(0, 3)[:2]
    if site.option("merge_outputs"):
        return (*steps, -1 if forward < 0 or backward < 0 else forward + backward)
    return [(*steps, forward), (*steps, backward)]


def _batch(site: Site) -> int:
    """The batch of a sequence; time is the dimension beside it."""
    return site.ranked(0, 3)[1 if site.option("time_major") else 0]


def _check_lstm_state(site: Site, index: int, batch: int, outputs: int, weights: int) -> None:
    """Checks the output state at ``index`` and the cell state behind it; ``weights`` tells the number of cells."""
    _check_state(site, index, batch, outputs)
    _check_state(site, index + 1, batch, site.ranked(weights, 2)[0])


def _check_state(site: Site, index: int, batch: int, width: int) -> None:
    shape = site.shape(index)
    fits = agree(product(shape), product((batch, width)))
    site.require(fits, f"the state in input {index} has shape {show(shape)}, not {show((batch, width))}")
