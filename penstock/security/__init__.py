"""Who calls, decided from values: keys, tokens, certificates, and the limit of failed attempts."""
