#!/usr/bin/env bash
# deploy/monitoring/make-grafana-password.sh [FOLDER]: makes FOLDER/grafana_password once, the password of Grafana's account
# `admin`; without FOLDER in ./secrets, where docker-compose.yml looks for it. One that is there stays.
set -euo pipefail

folder=${1:-secrets}
file=$folder/grafana_password

mkdir -p -m 700 "$folder"
if [[ $(stat -c %a "$folder") != 700 || ! -O $folder ]]; then
  echo "$folder: expected a folder of yours that is closed to others (chmod 700 $folder)" >&2
  exit 1
fi
if [[ -s $file ]]; then
  exit 0
fi
part=$(mktemp "$file.XXXXXX")
trap 'rm -f "$part"' EXIT
head -c 18 /dev/urandom | base64 >"$part"
# Grafana's container reads it as another user; nobody else gets through the folder.
chmod 444 "$part"
mv "$part" "$file"
trap - EXIT
echo "the password of Grafana's account admin is in $file"
