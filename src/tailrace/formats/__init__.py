"""Declarations of every byte on disk and on the wire. Each format is declared once, here."""
