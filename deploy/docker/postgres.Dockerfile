# PostgreSQL from Debian's package, where its own image can't be had. It takes the same variables as that one.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}
ARG POSTGRESQL=15
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends postgresql-common >/dev/null \
    && sed -i 's/^#*create_main_cluster.*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf \
    && apt-get install -y -qq --no-install-recommends "postgresql-${POSTGRESQL}" >/dev/null \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o postgres -g postgres -m 700 /var/lib/postgresql/data
COPY --chmod=755 postgres-start.sh /usr/local/bin/
ENV PATH=/usr/lib/postgresql/${POSTGRESQL}/bin:$PATH
USER postgres
VOLUME /var/lib/postgresql/data
ENTRYPOINT ["postgres-start.sh"]
