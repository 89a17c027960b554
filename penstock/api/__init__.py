"""Applications behind the door: each decodes requests, submits them and encodes the answers."""
