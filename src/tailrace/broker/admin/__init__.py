"""Requests of administration: topics, groups, settings, users, retention, figures."""
