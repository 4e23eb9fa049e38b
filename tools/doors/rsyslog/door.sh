#!/bin/sh
# rsyslog's omkafka produces numbers to a topic. See README.md above for the arguments. It reads them as lines
# of a file, and at its end waits for what is on its way; this release writes no headers.
set -eu
count=$4 acked=$(realpath "$5") here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d) last=$(($3 + $4 - 1))
touch "$work/lines" "$work/stats"
sed -e "s#@WORK@#$work#g; s#@SERVERS@#$1#; s#@TOPIC@#$2#" "$here/rsyslog.conf" >"$work/rsyslog.conf"
rsyslogd -n -f "$work/rsyslog.conf" -i "$work/pid" &
daemon=$!
trap 'kill $daemon 2>/dev/null || true; rm -rf "$work"' EXIT
seq "$3" "$last" | awk -v per_second="${6:-1000000}" '
    { print $1 % 10 " " $1 }
    NR % 20 == 0 && per_second < 1000000 { fflush(); system("sleep " 20 / per_second) }
' >>"$work/lines"
ends=$(($(date +%s) + 180))
until grep -q "door-acks: .* submitted=$count " "$work/stats"; do
    [ "$(date +%s)" -lt "$ends" ] || { tail -n 20 "$work/stats" >&2; exit 1; }
    sleep 0.2
done
# It counts acknowledgements when it submits more, so there is no waiting for them; a failed record is noted.
kill "$daemon"
wait "$daemon"
[ ! -s "$work/failed" ] || { echo "not delivered:" >&2; head "$work/failed" >&2; exit 1; }
seq "$3" "$last" | sed 's/$/ -1 -1/' >"$acked"
