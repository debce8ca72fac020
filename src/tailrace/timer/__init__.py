"""Timer messages: wheel, log and checkpoint on disk, and the services that move messages through them."""
