"""The HTTP side: applications, TLS, certificates, limits on requests in flight, access checks."""
