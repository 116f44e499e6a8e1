"""What boto3 raises, said in one sentence of our own: the border that no foreign error crosses.

No sentence holds a URL with a signature, a key or a secret.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from guanaco.errors import StoreUnreachable

MISSING = frozenset({"NoSuchKey", "NoSuchUpload", "404", "NotFound"})
REFUSED = frozenset(
    {
        "AccessDenied",
        "ExpiredToken",
        "Forbidden",
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "401",
        "403",
    }
)
WRONG_REGION = frozenset(
    {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"}
)
WRONG_CLOCK = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
WRONG_REGION_STATUS = "301"  # of a HEAD, which has no body to say more

CREDENTIALS_HINT = "Check s3_access_key_id and s3_secret_access_key, and what they may do there."


class Missing(Exception):
    """No such object or upload; caught inside the store."""


@contextmanager
def translated(place: str, bucket: str, *, may_miss: bool) -> Iterator[None]:
    """StoreUnreachable, or Missing where ``may_miss`` allows that there is no such thing; ``place`` names the server."""
    from botocore import exceptions as boto

    try:
        yield
    except boto.ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if may_miss and code in MISSING:
            raise Missing(code) from None
        raise _answered(code, place, bucket) from None
    except (boto.NoCredentialsError, boto.PartialCredentialsError):
        raise StoreUnreachable(
            "There are no credentials for the artifact store.",
            hint="Set s3_access_key_id and s3_secret_access_key, or what boto3 reads by itself.",
        ) from None
    except boto.SSLError:
        raise StoreUnreachable(
            f"The certificate of {place} is not trusted.",
            hint="Name its authority's certificate in s3_ca_file.",
        ) from None
    except (
        boto.HTTPClientError,
        boto.ConnectionError,
    ):  # no route, nobody listens, no answer in time, an answer cut short
        raise StoreUnreachable(
            f"The artifact store at {place} does not answer.",
            hint="Check s3_endpoint, and that the server runs.",
        ) from None
    except (boto.BotoCoreError, ValueError) as error:
        raise StoreUnreachable(
            f"The artifact store at {place} cannot be used: {type(error).__name__}.",
            hint="Check artifacts_url and the s3_ settings.",
        ) from None


def _answered(code: str, place: str, bucket: str) -> StoreUnreachable:
    if code == "NoSuchBucket":
        return StoreUnreachable(
            f"There is no bucket {bucket} at {place}.",
            hint="Create it, or correct artifacts_url or s3_region.",
        )
    if code in REFUSED:
        return StoreUnreachable(
            f"{place} refuses the platform's credentials for the bucket {bucket} ({code}).",
            hint=CREDENTIALS_HINT,
        )
    if code in WRONG_CLOCK:
        return StoreUnreachable(
            f"The clocks of this machine and of {place} differ too much.",
            hint="Set this machine's clock.",
        )
    if code in WRONG_REGION or code == WRONG_REGION_STATUS:
        return StoreUnreachable(
            f"The bucket {bucket} is in another region than s3_region says.",
            hint="Correct s3_region.",
        )
    return StoreUnreachable(
        f"The artifact store at {place} answered {code or 'nonsense'}.",
        hint="Check s3_endpoint and artifacts_url; the server's log may say more.",
    )
