"""Alerts to the operator's webhook, and the service level (docs/alerts.md)."""
