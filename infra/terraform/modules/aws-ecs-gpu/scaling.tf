# ECS holds no request while nothing runs. The load balancer answers 503 then, and that count is what
# wakes the service: the first client waits for an alarm, an instance and the model, or tries again.

resource "aws_appautoscaling_target" "this" {
  service_namespace  = "ecs"
  resource_id        = "service/${aws_ecs_cluster.this.name}/${aws_ecs_service.this.name}"
  scalable_dimension = "ecs:service:DesiredCount"
  min_capacity       = var.min_instances
  max_capacity       = var.max_instances
  tags               = var.tags
}

resource "aws_appautoscaling_policy" "wake" {
  count = var.min_instances == 0 ? 1 : 0

  name               = "${var.name}-wake"
  policy_type        = "StepScaling"
  service_namespace  = aws_appautoscaling_target.this.service_namespace
  resource_id        = aws_appautoscaling_target.this.resource_id
  scalable_dimension = aws_appautoscaling_target.this.scalable_dimension

  # Exactly one: the alarm goes on while an instance boots, and must not ask for more of them.
  step_scaling_policy_configuration {
    adjustment_type         = "ExactCapacity"
    metric_aggregation_type = "Maximum"
    cooldown                = 60

    step_adjustment {
      metric_interval_lower_bound = 0
      scaling_adjustment          = 1
    }
  }
}

resource "aws_cloudwatch_metric_alarm" "wake" {
  count = var.min_instances == 0 ? 1 : 0

  alarm_name          = "${var.name}-asked-while-asleep"
  alarm_description   = "The load balancer had nowhere to send a request: start a task."
  comparison_operator = "GreaterThanOrEqualToThreshold"
  threshold           = 1
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = [aws_appautoscaling_policy.wake[0].arn]
  tags                = var.tags

  # The load balancer's own answers only: a 503 of the server, full or loading, is counted elsewhere.
  metric_name = "HTTPCode_ELB_503_Count"
  namespace   = "AWS/ApplicationELB"
  statistic   = "Sum"
  period      = 60
  dimensions  = { LoadBalancer = aws_lb.this.arn_suffix }
}

resource "aws_appautoscaling_policy" "sleep" {
  count = var.min_instances == 0 ? 1 : 0

  name               = "${var.name}-sleep"
  policy_type        = "StepScaling"
  service_namespace  = aws_appautoscaling_target.this.service_namespace
  resource_id        = aws_appautoscaling_target.this.resource_id
  scalable_dimension = aws_appautoscaling_target.this.scalable_dimension

  step_scaling_policy_configuration {
    adjustment_type         = "ExactCapacity"
    metric_aggregation_type = "Maximum"
    cooldown                = 60

    # Both sides of the threshold: an alarm over missing points brings no value.
    step_adjustment {
      metric_interval_upper_bound = 0
      scaling_adjustment          = 0
    }

    step_adjustment {
      metric_interval_lower_bound = 0
      scaling_adjustment          = 0
    }
  }
}

resource "aws_cloudwatch_metric_alarm" "sleep" {
  count = var.min_instances == 0 ? 1 : 0

  alarm_name          = "${var.name}-nobody-asks"
  alarm_description   = "No byte from or to a client for ${var.idle_seconds} s: stop every task."
  comparison_operator = "LessThanThreshold"
  threshold           = 1
  evaluation_periods  = var.idle_seconds / 60
  treat_missing_data  = "breaching" # without traffic the metric has no points at all
  alarm_actions       = [aws_appautoscaling_policy.sleep[0].arn]
  tags                = var.tags

  # Bytes and not requests: those that were answered 503 by the load balancer are not in its
  # RequestCount, so the service would be put to sleep while it wakes; and a long answer is traffic.
  metric_name = "ProcessedBytes"
  namespace   = "AWS/ApplicationELB"
  statistic   = "Sum"
  period      = 60
  dimensions  = { LoadBalancer = aws_lb.this.arn_suffix }
}

resource "aws_appautoscaling_policy" "load" {
  count = var.max_instances > 1 ? 1 : 0

  name               = "${var.name}-load"
  policy_type        = "TargetTrackingScaling"
  service_namespace  = aws_appautoscaling_target.this.service_namespace
  resource_id        = aws_appautoscaling_target.this.resource_id
  scalable_dimension = aws_appautoscaling_target.this.scalable_dimension

  target_tracking_scaling_policy_configuration {
    target_value       = var.requests_per_minute
    scale_in_cooldown  = var.idle_seconds
    scale_out_cooldown = var.startup_seconds

    predefined_metric_specification {
      predefined_metric_type = "ALBRequestCountPerTarget"
      resource_label         = "${aws_lb.this.arn_suffix}/${aws_lb_target_group.this.arn_suffix}"
    }
  }
}
