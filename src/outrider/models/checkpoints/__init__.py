"""Models as they lie on disk or on a registry: found, fetched, converted, read. Nothing here runs one."""
