"""HTTP/2 frames carried between a caller and the engine as they came; only requests with hooks are held."""
