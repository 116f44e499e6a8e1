"""Webhooks: what a developer is told without asking (docs/webhooks.md)."""
