"""Changes to archives that no job makes."""

from tailrace.store.archive_manifest import manifest_name, write_manifest


def write_manifest_over(archive, manifest):
    """Write a manifest, also over another one."""
    head = archive.head(manifest_name(manifest.segment))
    return write_manifest(archive, manifest, version="" if head is None else head.version)
