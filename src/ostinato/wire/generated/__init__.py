"""Protobuf classes made by tools/generate_proto.py."""
