"""TLS between processes of an installation: certificates in files, and gRPC credentials made of them.

Needs the standard library and gRPC only, so that agents and supervisors have it, too. Certificates are made on the head
node: see `malletrain.runtime.access.pki`.
"""
