"""What litefuse says about models: numbers (:mod:`.stats`), JSON documents (:mod:`.documents`), terminal tables."""
