"""Large values between ops on other machines, in a store such as Redis; docs/many-machines.md."""
