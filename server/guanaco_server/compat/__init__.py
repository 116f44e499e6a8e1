"""The wire protocol of the old client, chai-guanaco 1.4, over the same services (docs/old-client.md)."""
