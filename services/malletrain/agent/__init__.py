"""The agent of a node: starts and ends workers there; leaves when the node is wanted back.

It runs in the training environment: the standard library, gRPC and protobuf are all that it needs.
"""
