"""Every byte on disk or wire, declared once."""
