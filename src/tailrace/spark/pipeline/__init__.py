"""Jobs over whole stores: each a function from a session and paths to a DataFrame or a report."""
