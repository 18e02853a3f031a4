# Prometheus from Debian's package, where its own image can't be had.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends prometheus >/dev/null \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o nobody -g nogroup -m 700 /prometheus
USER nobody
VOLUME /prometheus
ENTRYPOINT ["prometheus"]
