#!/usr/bin/env python3
"""Writes the list of what an image consists of, and the licence texts that belong to it.

  deploy/image/sbom.py FOLDER VERSION FILE...

FOLDER is the image's tree, VERSION the output of `millraced --version`, and the FILEs are this system's files that were copied
into it. The Debian packages that own them, and those whose headers alone were compiled in, become the components of
FOLDER/usr/share/doc/millrace/sbom.cdx.json (CycloneDX 1.5). A file that no package owns becomes a component of its own, with its
digest. The packages' copyright files, and the licences that those refer to, are copied to their places in FOLDER.

The list depends on the components alone, except for its time, which is SOURCE_DATE_EPOCH's if that is set.
"""
import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import uuid

# Libraries of headers, which leave no file behind. A test looks for each in scripts/packages.tsv.
COMPILED_IN = ("libboost-url1.81-dev", "libboost1.81-dev", "libspdlog-dev", "nlohmann-json3-dev")


def installed(package):
    return subprocess.run(["dpkg-query", "-W", package], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def owners_of(files):
    """Returns {file: the package that owns it, as "libc6:amd64", or None}."""
    names = {}  # dpkg knows a file of /usr/lib by the name that its package gives it, which may be in /lib.
    for file in files:
        real = os.path.realpath(file)
        for name in (file, real, re.sub("^/usr", "", real), "/usr" + real):
            names.setdefault(name, set()).add(file)
    # Its status is 1 where it does not know all of them.
    lines = subprocess.run(["dpkg-query", "-S", *names], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.splitlines()
    owners = dict.fromkeys(files)
    for line in lines:
        packages, _, name = line.rpartition(": ")
        for file in names.get(name, ()):
            owners[file] = packages.split(", ")[0]
    return owners


def debian_component(package, distribution, has_text):
    fields = "${Package}\t${Version}\t${Architecture}\t${source:Package}\t${source:Version}"
    shown = subprocess.run(["dpkg-query", "-W", "-f", fields, package], check=True, stdout=subprocess.PIPE, text=True).stdout
    name, version, architecture, source, source_version = shown.split("\t")
    purl = f"pkg:deb/debian/{name}@{version.replace(':', '%3A').replace('+', '%2B')}?arch={architecture}&distro={distribution}"
    properties = [{"name": "debian:source", "value": f"{source} {source_version}"}]
    if has_text:
        properties.append({"name": "millrace:licence-text", "value": f"/usr/share/doc/{name}/copyright"})
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, "properties": properties}


def file_component(file):
    digest = hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest()
    return {"type": "file", "bom-ref": f"file:{file}", "name": file, "hashes": [{"alg": "SHA-256", "content": digest}]}


def copy(source, folder):
    target = folder / source.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(source.read_bytes())


def copy_licences(package, folder):
    """Copies the package's licence texts. Returns whether it has any: those of other archives than Debian's may have none."""
    name = package.split(":")[0]
    text = pathlib.Path("/usr/share/doc", name, "copyright")
    if not text.exists():
        print(f"sbom.py: the package {name} has no {text}", file=sys.stderr)
        return False
    copy(text, folder)
    for named in re.findall(rb"/usr/share/common-licenses/([A-Za-z]+(?:-[0-9.]*[0-9])?)", text.read_bytes()):
        licence = pathlib.Path("/usr/share/common-licenses", named.decode())
        if licence.exists():
            copy(licence, folder)
    return True


def main():
    if len(sys.argv) < 4:
        sys.exit("usage: deploy/image/sbom.py FOLDER VERSION FILE...")
    folder, version, files = pathlib.Path(sys.argv[1]), sys.argv[2].split()[-1], sys.argv[3:]
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', pathlib.Path("/etc/os-release").read_text(), re.M))
    distribution = f"{release['ID']}-{release['VERSION_ID']}"

    owners = owners_of(files)
    packages = sorted({package for package in owners.values() if package} | {package for package in COMPILED_IN if installed(package)})
    components = [debian_component(package, distribution, copy_licences(package, folder)) for package in packages]
    components += [file_component(file) for file in sorted(files) if not owners[file]]

    itself = {"type": "application", "bom-ref": "millrace", "name": "millrace", "version": version,
              "licenses": [{"license": {"id": "Apache-2.0"}}]}
    digest = json.dumps([itself, components], sort_keys=True)
    time = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH") or datetime.datetime.now().timestamp()), datetime.timezone.utc)
    bom = {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json", "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest)}",
        "metadata": {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"), "component": itself},
        "components": components,
        "dependencies": [{"ref": "millrace", "dependsOn": [component["bom-ref"] for component in components]}],
    }
    target = folder / "usr/share/doc/millrace/sbom.cdx.json"
    target.write_text(json.dumps(bom, indent=1) + "\n")


main()
