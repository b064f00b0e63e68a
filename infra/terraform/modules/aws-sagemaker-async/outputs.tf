output "url" {
  description = "Address that takes asynchronous invocations; requests are signed with AWS credentials."
  value = format(
    "https://runtime.sagemaker.%s.amazonaws.com/endpoints/%s/async-invocations",
    split(":", aws_sagemaker_endpoint.this.arn)[3],
    aws_sagemaker_endpoint.this.name,
  )
}

output "endpoint_name" {
  description = "Name for aws sagemaker-runtime invoke-endpoint-async."
  value       = aws_sagemaker_endpoint.this.name
}

output "output_path" {
  description = "Where answers appear."
  value       = "s3://${var.output_bucket}/${var.name}/out/"
}

output "role_arn" {
  description = "Whom the endpoint runs as."
  value       = local.role_arn
}
