mock_provider "aws" {
  mock_resource "aws_appautoscaling_policy" {
    defaults = {
      arn = "arn:aws:autoscaling:us-east-1:111122223333:scalingPolicy:0:resource/sagemaker/endpoint/zse:policyName/x"
    }
  }

  mock_resource "aws_iam_role" {
    defaults = {
      arn = "arn:aws:iam::111122223333:role/zse"
    }
  }

  mock_resource "aws_sagemaker_endpoint" {
    defaults = {
      arn = "arn:aws:sagemaker:us-east-1:111122223333:endpoint/zse"
    }
  }
}

variables {
  image         = "111122223333.dkr.ecr.us-east-1.amazonaws.com/team/llm:1"
  output_bucket = "answers"
}

run "sleeps_and_wakes_on_a_backlog" {
  command = apply

  assert {
    condition     = aws_appautoscaling_target.this.min_capacity == 0
    error_message = "It must scale to zero."
  }
  assert {
    condition     = aws_cloudwatch_metric_alarm.from_zero[0].metric_name == "HasBacklogWithoutCapacity"
    error_message = "Only this alarm sees requests when nothing runs."
  }
  assert {
    condition     = contains(aws_cloudwatch_metric_alarm.from_zero[0].alarm_actions, aws_appautoscaling_policy.from_zero[0].arn)
    error_message = "The alarm starts the first instance."
  }
  assert {
    condition     = aws_sagemaker_model.this.primary_container[0].environment["PORT"] == "8080"
    error_message = "SageMaker asks port 8080."
  }
  assert {
    condition     = length(aws_sagemaker_model.this.primary_container[0].model_data_source) == 0
    error_message = "The model is in the image."
  }
  assert {
    condition     = output.url == "https://runtime.sagemaker.us-east-1.amazonaws.com/endpoints/zse/async-invocations"
    error_message = "The URL is an output."
  }
  assert {
    condition = contains(
      flatten([for s in jsondecode(aws_iam_role_policy.this[0].policy).Statement : s.Resource]),
      "arn:aws:ecr:us-east-1:111122223333:repository/team/llm",
    )
    error_message = "The role may pull this image only."
  }
}

run "takes_the_model_from_a_prefix_as_it_is" {
  command = apply

  variables {
    model_prefix = "s3://models/llm/"
    model_file   = "qwen.zse"
    role_arn     = "arn:aws:iam::111122223333:role/mine"
  }

  assert {
    condition     = aws_sagemaker_model.this.primary_container[0].environment["ZSE_MODEL"] == "/opt/ml/model/qwen.zse"
    error_message = "SageMaker copies to /opt/ml/model."
  }
  assert {
    condition     = aws_sagemaker_model.this.primary_container[0].model_data_source[0].s3_data_source[0].compression_type == "None"
    error_message = "No tar.gz."
  }
  assert {
    condition     = length(aws_iam_role.this) == 0
    error_message = "The role is the caller's."
  }
}

run "needs_no_alarm_when_it_never_sleeps" {
  command = apply

  variables {
    min_instances = 1
  }

  assert {
    condition     = length(aws_cloudwatch_metric_alarm.from_zero) == 0
    error_message = "There is no zero to wake from."
  }
}

run "refuses_an_image_outside_ecr" {
  command = plan

  variables {
    image = "docker.io/someone/llm:1"
  }

  expect_failures = [var.image]
}

run "refuses_a_gpu_that_is_too_old" {
  command = plan

  variables {
    gpu_type = "ml.g4dn.xlarge"
  }

  expect_failures = [var.gpu_type]
}
