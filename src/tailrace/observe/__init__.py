"""What a running broker shows: the text of ``/metrics``, lags, and the HTTP port with its pages."""
