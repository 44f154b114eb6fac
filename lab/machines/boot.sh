# The first process of a machine, in namespaces of its own: builds the file system, sets up the network, becomes init.
#
# The root is a fresh tmpfs. Programs come from /usr, the Python environment is bound to PYTHON_AT, and nothing else of
# this computer's files is there. Everything that a machine writes is in that tmpfs, and ends with it.
# Talks to keeper.py: prints its process id, waits for a line that says that the network device is there, and reports.
set -eu
read -r pid _ < /proc/self/stat # /proc is still that of the calling process, so this is the process id there
echo "$pid"

mount -t tmpfs -o mode=755 machine "$ROOT"
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
echo "$NAME" > etc/hostname
echo "$HOSTS" > etc/hosts
rm -f etc/resolv.conf
: > etc/resolv.conf # names that are unknown fail at once

mount -o bind,ro /dev dev
mount -t tmpfs -o mode=1777 shm dev/shm
mount -t devpts -o newinstance,ptmxmode=666,mode=620 pts dev/pts
mount --bind dev/pts/ptmx dev/ptmx
mount -t proc proc proc
mount -t sysfs sys sys
if [ "$(stat -f -c %T /sys/fs/cgroup)" = tmpfs ]; then
  mount -t tmpfs -o mode=755 cgroup sys/fs/cgroup
  find /sys/fs/cgroup -maxdepth 1 -type l -exec cp -P {} sys/fs/cgroup ';'
fi
echo "$CGROUPS" | while read -r type options folder; do # in a cgroup namespace: the machine's own cgroup is the root
  mkdir -p ".$folder"
  mount -t "$type" -o "$options" cgroup ".$folder"
done

mkdir .outside
pivot_root . .outside
cd /
umount -l .outside
rmdir .outside
echo "$NAME" > /proc/sys/kernel/hostname

read -r _ # now the device is there
ip link set lo up
ip address add "$ADDRESS/24" dev eth0
ip link set eth0 up
echo up

trap '' CHLD # inherited by what follows: the kernel then reaps orphans itself
exec env -i sleep infinity < /dev/null > /dev/null 2>&1
