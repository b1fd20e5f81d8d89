"""The page's figures, one file a chart. Each returns a `Figure`, or None when the result has nothing to
draw."""
