"""The settings about feedback and what developers may see of it; a part of settings.py."""

from __future__ import annotations

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings

from guanaco_server.anonymization.anonymizer import DEFAULT_REGIONS


class FeedbackSettings(BaseSettings):
    phone_regions: list[str] = Field(
        default=list(DEFAULT_REGIONS),
        description="Countries (ISO 3166, two letters) whose phone numbers are recognized in texts without a country code; each costs some microseconds a number.",
    )

    @field_validator("phone_regions")
    @classmethod
    def _are_known(cls, regions: list[str]) -> list[str]:
        from phonenumbers import SUPPORTED_REGIONS

        if unknown := [region for region in regions if region not in SUPPORTED_REGIONS]:
            raise ValueError(f"There is no country {unknown[0][:40]!r}; write it like US or DE")
        return regions
