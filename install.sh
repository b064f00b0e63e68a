#!/bin/sh
# Installs zse for one user, without root: a Python environment of its own and the command `zse`.
#
#   less install.sh; sh install.sh --version 0.1.0 --extras convert
#
#   --version X.Y.Z    the release (needed unless --wheel is given)
#   --from URL         where releases lie  [those that this script was released with]
#   --wheel FILE       a wheel that lies here, instead of a release
#   --extras LIST      such as convert,s3  [none: serving, chatting, building images]
#   --prefix DIR       where everything goes  [~/.local]
#   --uninstall        remove what this script installed
#   --dry-run          say what would be done, do nothing
#
# It writes PREFIX/share/zse-toolkit (the environment) and PREFIX/bin/zse (a link), and nothing else. A release's wheel must
# have the digest that the release's SHA256SUMS names. Python 3.11 or newer is taken where it is found; else `uv`, if it
# is installed, fetches one. The script runs from its last line on, so that half of it, fetched, does nothing.
set -eu

RELEASES= # scripts/release writes the address of the releases here
TORCH_INDEX=https://download.pytorch.org/whl/cpu # what converting needs, without gigabytes of CUDA

version='' from=${RELEASES%/} wheel='' extras='' prefix="${HOME:-}/.local" act=install run=''

say() { printf '%s\n' "$*" >&2; }
fail() { # code, what happened, what to do
    say "error: $2"
    say "hint: $3"
    exit "$1"
}

read_words() {
    while [ $# -gt 0 ]; do
        case $1 in
            --uninstall) act=uninstall ;;
            --dry-run) run='say   would run:' ;;
            -h | --help)
                sed -n '2,/^set -eu/s/^#\( \|$\)//p' "$0"
                exit 0
                ;;
            --version | --from | --wheel | --extras | --prefix)
                [ -n "${2:-}" ] || fail 2 "$1 needs a value" "sh install.sh --help"
                case $1 in
                    --version) version=${2#v} ;;
                    --from) from=${2%/} ;;
                    --wheel) wheel=$2 ;;
                    --extras) extras=$2 ;;
                    --prefix) prefix=$2 ;;
                esac
                shift
                ;;
            *) fail 2 "unknown option $1" "sh install.sh --help" ;;
        esac
        shift
    done
}

check_words() {
    case $prefix in
        /?*) ;;
        *) fail 2 "the prefix '$prefix' is no absolute path" "Give one: --prefix /home/me/.local" ;;
    esac
    case $extras in *[!a-z0-9,-]*) fail 2 "'$extras' is no list of extras" "For example: --extras convert,s3" ;; esac
    [ "$act" = install ] || return 0
    case $version in *[!0-9a-z.]*) fail 2 "'$version' is no version" "For example: --version 0.1.0" ;; esac
    [ -n "$version$wheel" ] || fail 2 "which release?" "Give --version X.Y.Z, as the list of releases has it, or --wheel FILE."
    [ -z "$wheel" ] || [ -f "$wheel" ] || fail 3 "there is no file $wheel" "Give the path of a wheel of zse."
    [ -z "$wheel" ] || return 0
    case $from in
        '') fail 2 "where are the releases?" "Give --from https://..., or --wheel FILE." ;;
        https://?* | http://127.0.0.1:* | http://localhost:*) ;;
        *) fail 2 "$from is no https address" "What is installed must not come over a wire that others can write to." ;;
    esac
}

torch_index() { # only for what holds torch: nothing else is looked for in an index of others
    case ,$extras, in *,convert,* | *,hf,* | *,demo,* | *,dev,*) echo "$TORCH_INDEX" ;; esac
}

check_machine() {
    [ "$(uname -s)" = Linux ] || fail 5 "zse runs on Linux, and this is $(uname -s)" "Run it in a container or a virtual machine."
    case $(uname -m) in
        x86_64 | amd64 | aarch64 | arm64) ;;
        *) fail 5 "there are no kernels for $(uname -m)" "zse runs on x86_64 and aarch64." ;;
    esac
}

find_python() {
    for name in python3 python3.13 python3.12 python3.11; do
        if "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
}

fetch() { # address, file: no redirect leads from https to http
    case $1 in https:*) schemes='=https' ;; *) schemes='=https,http' ;; esac
    if command -v curl >/dev/null; then
        $run curl -fsSL --retry 3 --proto "$schemes" -o "$2" "$1"
    elif command -v wget >/dev/null; then
        case $1 in https:*) fetch_by_wget "$1" "$2" ;; *) $run wget -q -O "$2" "$1" ;; esac
    else
        fail 5 "neither curl nor wget is installed" "Install one, or fetch the wheel by hand and give --wheel."
    fi
}

fetch_by_wget() { # https address, file: wget alone would follow a redirect to http
    address=$1
    for _ in 1 2 3 4 5; do
        if [ -n "$run" ]; then
            $run wget -nv -S --max-redirect=0 -O "$2" "$address"
            return
        fi
        told=$(wget -nv -S --max-redirect=0 -O "$2" "$address" 2>&1) && return
        next=$(printf '%s\n' "$told" | tr -d '\r' | sed -n 's/^ *[Ll]ocation: *\([^ ]*\).*/\1/p' | tail -n 1)
        case $next in
            https://?*) address=$next ;;
            //*) address=https:$next ;;
            /*) address=$(printf '%s' "$address" | cut -d / -f 1-3)$next ;;
            '')
                say "$told"
                return 1
                ;;
            *) fail 8 "$address leads to $next, which is no https address" "Fetch the wheel by hand, and give --wheel." ;;
        esac
    done
    say "$1 leads on and on"
    return 1
}

fetch_wheel() { # folder: sets $wheel
    name=zse_toolkit-$version-py3-none-any.whl
    say "fetching $name ..."
    fetch "$from/v$version/SHA256SUMS" "$1/SHA256SUMS" || fail 3 "there is no release $version at $from" "See the list of releases."
    fetch "$from/v$version/$name" "$1/$name" || fail 8 "$name could not be fetched" "Try again."
    wheel=$1/$name
    [ -z "$run" ] || return 0
    expected=$(awk -v name="$name" '$2 == name { print $1 }' "$1/SHA256SUMS")
    found=$(sha256sum "$wheel" | cut -d' ' -f1)
    [ "${expected:-none}" = "$found" ] ||
        fail 6 "$name has the digest $found, and SHA256SUMS says ${expected:-nothing}" "It was damaged or replaced on its way: do not use it."
}

make_environment() { # folder
    python=$(find_python)
    if [ -n "$python" ]; then
        $run "$python" -m venv "$1"
    elif command -v uv >/dev/null; then
        $run uv venv --quiet --seed --python 3.12 "$1"
    else
        fail 5 "no Python 3.11 or newer with venv was found, and no uv" \
            "Debian, Ubuntu: apt-get install python3-venv. Or install uv (https://docs.astral.sh/uv), which fetches a Python."
    fi
}

install_zse() {
    check_machine
    home=$prefix/share/zse-toolkit
    link=$prefix/bin/zse
    [ ! -e "$link" ] || [ "$(readlink "$link")" = "$home/bin/zse" ] || fail 6 "$link is something else" "Move it away, or choose another --prefix."
    [ ! -e "$home" ] || [ -f "$home/.installed-by-zse" ] || fail 6 "$home is something else" "Move it away, or choose another --prefix."
    new=$(mktemp -d)
    trap 'rm -rf "$new"' EXIT
    [ -n "$wheel" ] || fetch_wheel "$new"
    $run mkdir -p "$prefix/share" "$prefix/bin"
    $run rm -rf "$home.old"
    index=$(torch_index)
    # A virtual environment holds its own path: it is made where it stays, and the one before it waits beside.
    [ ! -d "$home" ] || $run mv "$home" "$home.old"
    if make_environment "$home" && $run touch "$home/.installed-by-zse" &&
        $run "$home/bin/python" -m pip install --quiet --disable-pip-version-check ${index:+--extra-index-url "$index"} "$wheel${extras:+[$extras]}"; then
        $run rm -rf "$home.old"
    else
        $run rm -rf "$home"
        [ ! -d "$home.old" ] || $run mv "$home.old" "$home"
        fail 8 "pip could not install zse" "What it says stands above. What was installed before is as it was."
    fi
    $run ln -sf "$home/bin/zse" "$link"
    [ -n "$run" ] || say "installed: $("$link" --version 2>/dev/null) as $link"
    case ":$PATH:" in *":$prefix/bin:"*) ;; *) say "hint: put $prefix/bin into PATH" ;; esac
    say "Try: zse chat tiny   (the built-in model), or zse --help"
}

uninstall_zse() {
    home=$prefix/share/zse-toolkit
    [ -f "$home/.installed-by-zse" ] || fail 3 "nothing that this script installed is in $prefix" "Give the --prefix it was installed with."
    [ "$(readlink "$prefix/bin/zse" 2>/dev/null)" != "$home/bin/zse" ] || $run rm -f "$prefix/bin/zse"
    $run rm -rf "$home"
    say "removed; models and keys in ~/.cache/zse and ~/.zse are left: rm -r them if you want"
}

main() {
    read_words "$@"
    check_words
    if [ "$act" = uninstall ]; then uninstall_zse; else install_zse; fi
}

main "$@"
