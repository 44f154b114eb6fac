# Builds a root file system in ROOT: what machines and sandboxes of the laboratory see of this computer's files.
#
# The root is a fresh tmpfs. Programs come from /usr, the Python environment is bound to PYTHON_AT, and nothing else of
# this computer's files is there but copies of those in /etc.
set -eu
mount -t tmpfs -o mode=755 root "$ROOT"
cd "$ROOT"
mkdir -p dev home opt proc root run/lock sys tmp usr var/cache var/lib var/log var/spool var/tmp
chmod 1777 tmp var/tmp run/lock
chmod 700 root
ln -s /run var/run
ln -s /run/lock var/lock

mount -o bind,ro /usr usr
for name in bin sbin lib lib32 lib64 libx32; do
  if [ -L "/$name" ]; then
    cp -P "/$name" .
  elif [ -d "/$name" ]; then
    mkdir "$name"
    mount -o bind,ro "/$name" "$name"
  fi
done
if [ ! -d ".$PYTHON_BASE/bin" ]; then # below /usr it is there already
  mkdir -p ".$PYTHON_BASE"
  mount -o bind,ro "$PYTHON_BASE" ".$PYTHON_BASE"
fi
mkdir -p ".$PYTHON_AT"
mount -o bind,ro "$PYTHON" ".$PYTHON_AT"
echo "$COVERED" | while read -r folder; do
  [ ! -d ".$folder" ] || mount -t tmpfs -o ro,mode=755 covered ".$folder"
done

cp -a /etc .
rm -f etc/resolv.conf
: > etc/resolv.conf # names that are unknown fail at once
