"""Docker mode: an HTTP/1.1 reverse proxy before the Docker engine (RP-DKR-01..03)."""
