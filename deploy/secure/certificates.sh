#!/bin/sh
# Make a CA, the certificate of a broker and the password of its first user: certificates.sh DIRECTORY NAME...
# A NAME is a host name or an IP address that clients connect to. Existing files are kept, so that a second call with
# other names only needs broker.pem removed. Keep ca.key away from the broker.
set -eu
[ $# -ge 2 ] || { echo "usage: $0 DIRECTORY NAME..." >&2; exit 2; }
umask 077
directory=$1; shift
mkdir -p "$directory"; cd "$directory"
names=
for name; do
  case $name in
    *[!0-9.]*) case $name in *:*) kind=IP ;; *) kind=DNS ;; esac ;;
    *) kind=IP ;;
  esac
  names="$names${names:+,}$kind:$name"
done
[ -f ca.pem ] || openssl req -x509 -newkey rsa:3072 -nodes -days 3650 -subj "/CN=Tailrace CA" \
  -keyout ca.key -out ca.pem 2>/dev/null
if [ ! -f broker.pem ]; then
  openssl req -newkey rsa:3072 -nodes -subj "/CN=broker" -keyout broker.key -out broker.csr 2>/dev/null
  printf 'subjectAltName=%s\n' "$names" > names
  openssl x509 -req -in broker.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 365 -sha256 -extfile names \
    -out broker.pem 2>/dev/null
  rm -f broker.csr names
fi
[ -f root.password ] || openssl rand -base64 30 > root.password
chmod 644 ca.pem broker.pem
echo "$directory: ca.pem for clients; broker.pem, broker.key and root.password for the broker; ca.key for nobody else"
