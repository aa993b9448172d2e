# The server with the storages SQLite and PostgreSQL, and backups to S3.
#
#   docker build -t bunqueue .
#   docker run -d --name bunqueue -p 6789:6789 -p 6790:6790 -v bunqueue-data:/data -e BUNQUEUE_DATA_PATH=/data/bunqueue.db \
#     --stop-timeout 60 bunqueue
#
# Without a data path or a PostgreSQL URL it keeps its jobs in memory. A bunqueue.config.toml in /data is read.
# More: docs/containers.md

FROM python:3.13-slim AS build
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY bunqueue_core bunqueue_core
COPY plugins plugins
RUN python -m venv /opt/bunqueue \
    && /opt/bunqueue/bin/python -m pip install --no-cache-dir --disable-pip-version-check --constraint constraints.txt \
        ".[server]" ./plugins/bunqueue_sqlite ./plugins/bunqueue_postgres ./plugins/bunqueue_s3 \
    && /opt/bunqueue/bin/python -m pip uninstall --yes --quiet pip

FROM python:3.13-slim
# The kernel drops signals that process 1 has no handler for yet: a stop while the server is still being loaded would be lost.
# Process 1 is therefore one that passes signals on from its first instruction.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --system --gid 10001 bunqueue \
    && useradd --system --uid 10001 --gid bunqueue --no-create-home --shell /usr/sbin/nologin bunqueue \
    && install --directory --owner=bunqueue --group=bunqueue /data
COPY --from=build /opt/bunqueue /opt/bunqueue
ENV PATH=/opt/bunqueue/bin:$PATH \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 6789 6790
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=10s --start-period=30s --retries=3 CMD ["bunqueue", "healthcheck"]
ENTRYPOINT ["tini", "-s", "--", "bunqueue"]
CMD ["start"]
