"""The same networks in the form of every library, with fixed weights."""
