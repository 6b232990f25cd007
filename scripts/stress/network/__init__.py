"""NFS, object storage and packs straight to a URL."""
