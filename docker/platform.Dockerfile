# The platform: API, worker, migrations; the role is an argument. Build it in the repository's root:
#   docker build -f docker/platform.Dockerfile -t guanaco-platform:0.1.0 .
FROM python:3.11.13-slim-bookworm AS build
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
COPY requirements/image-build.txt requirements/image-platform.txt requirements/
RUN python -m venv /opt/guanaco \
 && /opt/guanaco/bin/pip install --no-deps --require-hashes -r requirements/image-platform.txt \
 && pip install --no-deps --require-hashes -r requirements/image-build.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY guanaco guanaco
COPY cli cli
COPY server server
COPY migrations migrations
COPY docs/runbooks.md docs/runbooks.md
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /opt/guanaco/bin/pip install --no-deps /wheels/*.whl

FROM python:3.11.13-slim-bookworm
ARG REVISION=unknown
LABEL org.opencontainers.image.title="guanaco-platform" \
      org.opencontainers.image.description="Guanaco: API, chat gateway, pipeline, reconciler" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
# pg_dump and pg_basebackup, for `guanaco backup`: they dump servers up to their own version.
RUN apt-get update \
 && apt-get install -y --no-install-recommends postgresql-client \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/guanaco /opt/guanaco
# The root file system may be read-only: what is written goes to the data folder and /tmp, both to be mounted.
ENV PATH=/opt/guanaco/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    GUANACO_DATA_DIR=/var/lib/guanaco \
    GUANACO_HOST=0.0.0.0
RUN install -d -o 10001 -g 10001 -m 0700 /var/lib/guanaco
USER 10001:10001
EXPOSE 8300 9090
ENTRYPOINT ["guanaco"]
CMD ["up"]
