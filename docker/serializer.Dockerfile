# The serializer job: Hub to artifact store, without torch. The job's command comes from the worker.
#   docker build -f docker/serializer.Dockerfile -t guanaco-serializer:0.1.0 .
FROM python:3.11.13-slim-bookworm AS build
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
COPY requirements/image-build.txt requirements/image-serializer.txt requirements/
RUN python -m venv /opt/guanaco \
 && /opt/guanaco/bin/pip install --no-deps --require-hashes -r requirements/image-serializer.txt \
 && pip install --no-deps --require-hashes -r requirements/image-build.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY guanaco guanaco
COPY cli cli
COPY server server
COPY migrations migrations
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /opt/guanaco/bin/pip install --no-deps /wheels/*.whl

FROM python:3.11.13-slim-bookworm
ARG REVISION=unknown
LABEL org.opencontainers.image.title="guanaco-serializer" \
      org.opencontainers.image.description="Guanaco: makes artifacts from Hub repos" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/guanaco /opt/guanaco
ENV PATH=/opt/guanaco/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp
USER 10001:10001
CMD ["python3", "-m", "guanaco_server.serializer.job"]
