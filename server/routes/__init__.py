"""HTTP routes, a file for each group of endpoints: they parse, hand over and answer."""
