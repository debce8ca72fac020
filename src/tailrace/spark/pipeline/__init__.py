"""Jobs over whole stores. Each job is a function of a session and paths that returns a DataFrame or a report."""
