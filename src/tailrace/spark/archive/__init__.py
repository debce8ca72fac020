"""The archive of deleted segments: its layout, the job that writes it, and how it is read back."""
