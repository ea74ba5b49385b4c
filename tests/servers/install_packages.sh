#!/bin/sh
# Installs Debian packages without letting their daemons start. Runs as root; the packages are the arguments.
# invoke-rc.d asks policy-rc.d before it starts a service, and 101 forbids it. A policy that is there already is the
# machine's own and stays.
set -eu
policy="${POLICY_RC_D:-/usr/sbin/policy-rc.d}"

if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi

DEBIAN_FRONTEND=noninteractive
export DEBIAN_FRONTEND

attempt() {
    apt-get -q update &&
        apt-get -q -y --no-install-recommends -o DPkg::Lock::Timeout=120 install "$@"
}

# Once more, because mirrors and locks have bad moments.
attempt "$@" || attempt "$@"
