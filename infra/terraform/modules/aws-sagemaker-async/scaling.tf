# Two policies: the backlog decides between one instance and many. From zero there is no backlog for
# each instance, so an alarm on a backlog without capacity takes the first step.

resource "aws_appautoscaling_target" "this" {
  service_namespace  = "sagemaker"
  resource_id        = "endpoint/${aws_sagemaker_endpoint.this.name}/variant/${local.variant}"
  scalable_dimension = "sagemaker:variant:DesiredInstanceCount"
  min_capacity       = var.min_instances
  max_capacity       = var.max_instances
  tags               = var.tags

  lifecycle {
    precondition {
      condition     = var.min_instances <= var.max_instances
      error_message = "min_instances is above max_instances."
    }
  }
}

resource "aws_appautoscaling_policy" "backlog" {
  name               = "${var.name}-backlog"
  policy_type        = "TargetTrackingScaling"
  service_namespace  = aws_appautoscaling_target.this.service_namespace
  resource_id        = aws_appautoscaling_target.this.resource_id
  scalable_dimension = aws_appautoscaling_target.this.scalable_dimension

  target_tracking_scaling_policy_configuration {
    target_value       = var.backlog_per_instance
    scale_in_cooldown  = var.idle_seconds
    scale_out_cooldown = 60

    customized_metric_specification {
      namespace   = "AWS/SageMaker"
      metric_name = "ApproximateBacklogSizePerInstance"
      statistic   = "Average"

      dimensions {
        name  = "EndpointName"
        value = aws_sagemaker_endpoint.this.name
      }
    }
  }
}

resource "aws_appautoscaling_policy" "from_zero" {
  count = var.min_instances == 0 ? 1 : 0

  name               = "${var.name}-from-zero"
  policy_type        = "StepScaling"
  service_namespace  = aws_appautoscaling_target.this.service_namespace
  resource_id        = aws_appautoscaling_target.this.resource_id
  scalable_dimension = aws_appautoscaling_target.this.scalable_dimension

  step_scaling_policy_configuration {
    adjustment_type         = "ChangeInCapacity"
    metric_aggregation_type = "Average"
    cooldown                = 300

    step_adjustment {
      metric_interval_lower_bound = 0
      scaling_adjustment          = 1
    }
  }
}

resource "aws_cloudwatch_metric_alarm" "from_zero" {
  count = var.min_instances == 0 ? 1 : 0

  alarm_name          = "${var.name}-backlog-without-capacity"
  alarm_description   = "Requests wait and no instance runs: start the first."
  namespace           = "AWS/SageMaker"
  metric_name         = "HasBacklogWithoutCapacity"
  statistic           = "Average"
  comparison_operator = "GreaterThanOrEqualToThreshold"
  threshold           = 1
  period              = 60
  evaluation_periods  = 1
  datapoints_to_alarm = 1
  treat_missing_data  = "missing"
  dimensions          = { EndpointName = aws_sagemaker_endpoint.this.name }
  alarm_actions       = [aws_appautoscaling_policy.from_zero[0].arn]
  tags                = var.tags
}
