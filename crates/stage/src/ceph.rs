//! A pool `ceph` of the first daemon of a [`Landing`], whose images are files: `virsh` and `qemu-nbd` are stood in for;
//! [`crate::ceph_cluster`] has the true ones.
//! Domains that drover defines with images of it are given to the daemon with those files.

use std::path::PathBuf;

use crate::landing::Landing;

/// The key of the pool's user.
pub const KEY: &str = "QVFEZHJvdmVyQ2VwaEtleVRoYXRNYXlOb3RMZWFrPT0=";

/// The pool, and what the stand-ins do.
pub struct Ceph {
    bin: PathBuf,
    images: PathBuf,
}

impl Ceph {
    /// Puts the stand-ins before the programs of a landing. The pool has so many bytes free.
    pub fn put(landing: &Landing, free_bytes: u64) -> Ceph {
        let (bin, images) = (landing.stage.path("bin"), landing.folder.path().join("ceph"));
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::create_dir(&images).unwrap();
        let at = images.display().to_string();
        drover_lab::put_script(&bin.join("virsh"), &VIRSH.replace("@IMAGES@", &at)).unwrap();
        drover_lab::put_script(&bin.join("qemu-nbd"), &QEMU_NBD.replace("@IMAGES@", &at)).unwrap();
        let pool = format!(
            "<pool type='rbd'><name>ceph</name><available unit='bytes'>{free_bytes}</available><source>\
             <host name='192.0.2.7' port='6789'/><host name='192.0.2.8'/><name>vms</name>\
             <auth type='ceph' username='drover'><secret uuid='2ec115d7-3a88-3ceb-bc12-0ac909a6fd87'/></auth>\
             </source></pool>"
        );
        std::fs::write(bin.join("pool.xml"), pool).unwrap();
        std::fs::write(bin.join("key"), KEY).unwrap();
        Ceph { bin, images }
    }

    /// From now on something is so, or is not: `inactive`, `private` (the secret), `no-driver`, `away` (qemu-nbd opens nothing), `watched`
    /// (the next removal is refused once).
    pub fn set(&self, what: &str, is_so: bool) {
        let mark = self.bin.join(what);
        if is_so { std::fs::write(mark, "").unwrap() } else { std::fs::remove_file(mark).unwrap() }
    }

    /// Whether that is so.
    pub fn is(&self, what: &str) -> bool {
        self.bin.join(what).exists()
    }

    /// Gives the pool's monitors other addresses, those that begin so.
    pub fn rename_monitors(&self, from: &str, to: &str) {
        let pool = self.bin.join("pool.xml");
        let xml = std::fs::read_to_string(&pool).unwrap();
        assert!(xml.contains(from), "{xml}");
        std::fs::write(pool, xml.replace(from, to)).unwrap();
    }

    /// The file of an image.
    pub fn file(&self, image: &str) -> PathBuf {
        self.images.join(image)
    }

    /// The images that there are.
    pub fn images(&self) -> Vec<String> {
        let files = std::fs::read_dir(&self.images).unwrap();
        let mut names: Vec<String> =
            files.map(|file| file.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// What qemu-nbd was told, a line for each.
    pub fn told(&self) -> String {
        std::fs::read_to_string(self.bin.join("told")).unwrap_or_default()
    }

    /// The definition of a domain as drover gave it.
    pub fn asked(&self, domain: &str) -> String {
        std::fs::read_to_string(self.bin.join(format!("{domain}.xml"))).unwrap()
    }
}

const VIRSH: &str = r#"here=$(dirname "$0") images=@IMAGES@
PATH=${PATH#*:}
verb=$4 pool='' vol='' file='' last='' before=''
for last; do
    case $before in --pool) pool=$last ;; --vol) vol=$last ;; --file) file=$last ;; esac
    before=$last
done
case $verb in
pool-list)
    virsh "$@" || exit 1
    case " $* " in
    *' --all '*) echo ceph ;;
    *) [ -e "$here/inactive" ] || echo ceph ;;
    esac
    exit ;;
secret-get-value)
    if [ -e "$here/private" ]; then echo 'error: Requested operation is not valid: secret is private' >&2; exit 1; fi
    exec cat "$here/key" ;;
define)
    cp "$last" "$here/$(sed -n 's|.*<name>\(.*\)</name>.*|\1|p' "$last").xml"
    sed -i -e "s|<disk type='network'|<disk type='file'|" \
        -e "/<source protocol='rbd'/,/<.source>/{/<source /s|.*name='vms/\([^']*\)'.*|<source file='$images/\1'/>|p;d}" "$last"
    exec virsh "$@" ;;
esac
[ "$pool" = ceph ] || exec virsh "$@"
case $verb in
pool-dumpxml) cat "$here/pool.xml" ;;
pool-refresh) ;;
vol-dumpxml)
    if [ ! -e "$images/$vol" ]; then
        echo "error: Storage volume not found: no storage vol with matching name '$vol'" >&2
        exit 1
    fi
    echo "<volume type='network'><name>$vol</name><key>vms/$vol</key>"
    echo "<capacity unit='bytes'>$(stat -c %s "$images/$vol")</capacity>"
    echo "<allocation unit='bytes'>$(($(stat -c %b "$images/$vol") * 512))</allocation></volume>" ;;
vol-create)
    name=$(sed -n 's|.*<name>\(.*\)</name>.*|\1|p' "$file")
    if [ -e "$images/$name" ]; then echo 'error: storage volume name is in use' >&2; exit 1; fi
    truncate -s "$(sed -n "s|.*<capacity unit='bytes'>\(.*\)</capacity>.*|\1|p" "$file")" "$images/$name" ;;
vol-delete)
    if [ -e "$here/watched" ]; then
        rm "$here/watched"
        echo "error: failed to remove volume 'vms/$vol': Success" >&2
        exit 1
    fi
    rm "$images/$vol" ;;
*) echo "error: the stand-in knows no $verb" >&2; exit 1 ;;
esac"#;

// It takes no lock on the file: Ceph lets several write to an image.
const QEMU_NBD: &str = r#"here=$(dirname "$0") images=@IMAGES@
PATH=${PATH#*:}
opts='' object='' args='' before=''
for word; do
    case $before in
    --image-opts) opts=$word ;;
    --object) object=$word ;;
    *) case $word in --image-opts | --object) ;; *) args="$args $word" ;; esac ;;
    esac
    before=$word
done
[ -n "$opts" ] || exec qemu-nbd "$@"
fail() { echo "qemu-nbd: Failed to blk_new_open '$opts': $1" >&2; exit 1; }
echo "$*" >>"$here/told"
[ ! -e "$here/no-driver" ] || fail "Unknown driver 'rbd'"
case $opts in *driver=rbd,file.pool=vms,*) ;; *) fail "Parameter 'pool' is missing" ;; esac
[ ! -e "$here/away" ] || fail 'error connecting: Connection timed out'
case $opts in *,file.user=drover,file.key-secret=key,*) ;; *) fail 'error connecting: Permission denied' ;; esac
key=${object##*file=}
[ "$object" = "secret,id=key,format=base64,file=$key" ] || fail 'no key'
[ "$(stat -c %a "$key") $(cat "$key")" = "600 $(cat "$here/key")" ] || fail 'error connecting: Permission denied'
image=${opts#*file.image=} image=${image%%,*}
[ -e "$images/$image" ] || fail "error reading header from $image: No such file or directory"
exec qemu-nbd $args --image-opts "driver=raw,file.driver=file,file.locking=off,file.filename=$images/$image""#;
