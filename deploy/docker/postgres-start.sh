#!/bin/sh
# Starts PostgreSQL; at the first start makes the account POSTGRES_USER, whose password is in POSTGRES_PASSWORD_FILE, and the
# database POSTGRES_DB.
set -eu

data=/var/lib/postgresql/data/main
if [ ! -d "$data" ]; then
  rm -rf "$data.new"
  initdb --pgdata="$data.new" --username="$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" \
    --auth=scram-sha-256 --encoding=UTF8 --locale=C.UTF-8
  echo "host all all all scram-sha-256" >>"$data.new/pg_hba.conf"
  echo "CREATE DATABASE \"$POSTGRES_DB\"" | postgres --single -D "$data.new" postgres
  mv "$data.new" "$data"
fi
exec postgres -D "$data" -c "listen_addresses=*" -c unix_socket_directories=/tmp
