"""What a run is: settings, checks, folder, context, judge, log, resuming."""
