#!/bin/sh
# syslog-ng's kafka destination produces numbers to a topic. See README.md above for the arguments. It reads
# them as lines of a file, and at its end waits for what is on its way; it writes no headers.
# SYSLOG_NG_ROOT: the folder that its Debian packages are unpacked in; not set: it is installed.
set -eu
count=$4 acked=$(realpath "$5") here=$(cd "$(dirname "$0")" && pwd) root=${SYSLOG_NG_ROOT:-}
work=$(mktemp -d) last=$(($3 + $4 - 1))
touch "$work/lines"
sed -e "s#@WORK@#$work#g; s#@SERVERS@#$1#; s#@TOPIC@#$2#" "$here/syslog-ng.conf" >"$work/syslog-ng.conf"
modules=$(echo "$root"/usr/lib/syslog-ng/3.* "$root"/usr/lib/syslog-ng/4.* | tr ' ' '\n' | grep -v '\*')
"$root/usr/sbin/syslog-ng" -F --no-caps --module-path="$modules" -f "$work/syslog-ng.conf" \
    -R "$work/persist" -p "$work/pid" -c "$work/control" &
daemon=$!
trap 'kill $daemon 2>/dev/null || true; rm -rf "$work"' EXIT
seq "$3" "$last" | awk -v per_second="${6:-1000000}" '
    { print $1 % 10 " " $1 }
    NR % 20 == 0 && per_second < 1000000 { fflush(); system("sleep " 20 / per_second) }
' >>"$work/lines"
ends=$(($(date +%s) + 180))
counters() { "$root/usr/sbin/syslog-ng-ctl" stats -c "$work/control" 2>/dev/null || true; }
until counters | grep -qE "^dst.*kafka.*;written;$count\$"; do
    [ "$(date +%s)" -lt "$ends" ] || { counters >&2; exit 1; }
    sleep 0.2
done
# It waits for the acknowledgements of what it has given to librdkafka.
kill "$daemon"
wait "$daemon"
seq "$3" "$last" | sed 's/$/ -1 -1/' >"$acked"
