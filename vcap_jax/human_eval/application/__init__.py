"""The web application for annotators and for the one who runs a study. No request leaves the machine."""
